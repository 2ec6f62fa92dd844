"""Methods under the protocols of publications."""
