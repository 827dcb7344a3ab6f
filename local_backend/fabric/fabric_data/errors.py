"""The error for data that a program cannot open or use."""


class DataProblem(ValueError):
    """The data cannot be opened, or a row of it cannot be used. The text says which data and why."""
