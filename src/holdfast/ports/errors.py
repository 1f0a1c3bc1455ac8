"""The errors that the store raises."""


class WrongInstallation(Exception):
    """This database belongs to another installation. Our pods prove nothing about its workers, so the replica must refuse to work
    and stop."""


class Unstorable(Exception):
    """Postgres refuses a value as bad data (SQLSTATE class 22), so a request with this value can never be stored."""


class StoreUnavailable(Exception):
    """The store did not answer, or it is unknown whether a change was stored. Nothing may be concluded from that (P7)."""
