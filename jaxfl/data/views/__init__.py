"""Views: how a client sees an image of the pool, and what it calls its class."""
