"""Every error a user can meet, named by whose fault it is.

The message names the fault and the way out. The server turns the class into a status; the command line into an exit code.
"""


class PenstockError(Exception):
    """Root of all errors raised on purpose."""


class RequestError(PenstockError):
    """The request cannot be served as asked: the client's to change (HTTP 400)."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class CapacityError(PenstockError):
    """The request is fine but there is no room for it now (HTTP 429 or 503): try again later."""


class ConfigError(PenstockError):
    """The operator asked for something impossible (exit status 2)."""


class ModelFileError(ConfigError):
    """A model file is damaged, hostile, or of a kind we do not read."""


class EngineError(PenstockError):
    """Our fault: the engine failed while serving a valid request (HTTP 500)."""


class StoreError(PenstockError):
    """What is kept between runs cannot be read or written (HTTP 503)."""


class StepInterruptedError(EngineError):
    """A step was given up halfway for more urgent work: it is computed again later."""


class RankLostError(EngineError):
    """One of the ranks that compute a model together has ended or hangs: none of them can go on without it."""
