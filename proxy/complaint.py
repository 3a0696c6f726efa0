"""What went wrong, in words for a person: the base of every error that ends a command with one line.

Lowest of all, so that a command can say it without loading what it did not need.
"""


class Complaint(Exception):
    """Its text is one line that says what to do."""

    exit_code = 1
    """1 where a command failed, 2 for usage and configuration."""

    @property
    def line(self) -> str:
        """What a terminal is told."""
        return str(self)
