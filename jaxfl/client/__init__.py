"""What a client does in a round: its local training, written once, and what stragglers and attackers make of it."""
