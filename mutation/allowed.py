"""How many mutants a run may let survive."""


def allowed(at_least: float, judged: int) -> int:
    """Returns how many mutants may survive unexplained: none, unless a run asks for a lower percentage, as CI's sample does."""
    return int(judged * (100 - at_least) / 100)
