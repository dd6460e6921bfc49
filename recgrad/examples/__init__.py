"""Examples that start with one command, on data that it makes: `recgrad example NAME`."""

from recgrad.examples.example import EXAMPLES, Command, Example, Request, Step

__all__ = ["EXAMPLES", "Command", "Example", "Request", "Step"]
