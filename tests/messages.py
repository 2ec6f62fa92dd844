"""Patterns for the messages of errors and warnings: their arguments and values, not their sentences."""

import re


def mentions(*parts):
    """Return a pattern for texts that contain all `parts`, each as a whole word or number, in any order.

    Examples:
        >>> pattern = mentions("num_clusters", 40)
        >>> bool(re.search(pattern, "num_clusters must be at most 20, got 40"))
        True
        >>> bool(re.search(pattern, "num_clusters must be at most 20, got 400"))
        False
    """
    if not parts or "" in parts:
        raise ValueError(f"parts must be one or more texts or numbers, none of them empty, got {parts}")
    return "(?s:" + "".join(f"(?=.*{_whole(str(part))})" for part in parts) + ")"


def _whole(part):
    """Return a pattern for `part` where neither its first nor its last word or number goes on."""
    before = r"(?<![\w-])(?<!\d\.)" if part[0].isdigit() else r"(?<!\w)" if part[0].isalnum() else ""
    after = r"(?!\w|\.\d)" if part[-1].isdigit() else r"(?!\w)" if part[-1].isalnum() else ""
    return before + re.escape(part) + after
