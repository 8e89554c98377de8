"""What the pages have of their own beside the models: tools that run for them, refusals, and the machine's power."""

from penstock.service.server.front import Front
from penstock.service.server.ui.power import PowerMeter
from penstock.service.server.ui.refusals import RefusalLog
from penstock.service.server.ui.tools import Tools


class Pages:
    """Attached to the application; the server runs without it."""

    def __init__(self, front: Front) -> None:
        self.tools = Tools(lambda: front.health.num_open > 0)
        front.health.at_drain.append(self.tools.close)
        self.refusals = RefusalLog()
        self.power = PowerMeter(lambda: front.counters.machine(), front.config.price_per_hour)
