"""What is wrong, and what to do about it."""


class Failure(Exception):
    """An end of the playground that its user is to know the reason of."""
