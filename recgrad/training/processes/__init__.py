"""The processes of a run: who they are, what they compute together, and who is to blame."""

from recgrad.training.processes.environment import Environment, read_environment
from recgrad.training.processes.group import Processes, open_processes

__all__ = ["Environment", "Processes", "open_processes", "read_environment"]
