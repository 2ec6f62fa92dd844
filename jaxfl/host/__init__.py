"""The machine that jaxfl runs on: its operating system, and text that its terminals and tables take."""
