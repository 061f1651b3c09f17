"""What goes wrong because of what a person gave us."""


class FedkinError(ValueError):
    """The sentence says what was wrong, where, and what would be right; the command line ends with exit code 2."""
