"""The driver: callers send and receive themselves, one thread stands by.

It performs what the core orders and decides nothing. See :mod:`stagelink.adapters.threads.driver`.
"""

from stagelink.adapters.threads.counters import Counters
from stagelink.adapters.threads.driver import Driver, Parts
from stagelink.adapters.threads.tickets import Ticket
from stagelink.adapters.threads.views import Views
from stagelink.adapters.threads.worker import Outcome, Worker

__all__ = ["Counters", "Driver", "Outcome", "Parts", "Ticket", "Views", "Worker"]
