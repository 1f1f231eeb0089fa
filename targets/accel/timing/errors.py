"""What only a fault of lampc can cause: the command line exits with 70 and asks for a report."""


class InternalError(Exception):
    """Program, decision log and engine contradict each other, or a result contradicts a bound."""
