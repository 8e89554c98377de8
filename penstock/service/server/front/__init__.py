"""Between the routes and the engines: the models that are served, calls in progress, and the way of a call from body to answer.

A route reads a body of its own dialect, makes a `Prepared` call of it, and hands it back here.
"""

from penstock.service.server.front.answered import Begun, Counted, Prepared
from penstock.service.server.front.front import Front, caller_of, tenant_of

__all__ = ["Begun", "Counted", "Front", "Prepared", "caller_of", "tenant_of"]
