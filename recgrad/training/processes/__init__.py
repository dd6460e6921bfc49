"""The processes of a run: who they are, what they compute together and on what, and who is to blame."""

from recgrad.training.processes.device import choose_device
from recgrad.training.processes.environment import Environment, read_environment
from recgrad.training.processes.group import open_processes
from recgrad.training.processes.processes import Processes

__all__ = ["Environment", "Processes", "choose_device", "open_processes", "read_environment"]
