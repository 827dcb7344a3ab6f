"""What is wrong with data that a program opens."""


class DataProblem(ValueError):
    """The data cannot be opened, or a row of it cannot be used; the text says which and why."""
