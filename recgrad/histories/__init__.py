"""From a log of events to histories: rows of what users did and what they did next."""

from recgrad.histories.settings import HistorySettings
from recgrad.histories.write import HistoryReport, write_histories

__all__ = ["HistoryReport", "HistorySettings", "write_histories"]
