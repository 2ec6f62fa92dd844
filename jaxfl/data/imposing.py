"""What happens to the clients of a federation, by the names of the options: stragglers, attackers, data that drift."""

from jaxfl.data import conditions
from jaxfl.data import drift as drifts
from jaxfl.data.clients import FederatedData
from jaxfl.schema import checked


@checked
def impose(
    data: FederatedData,
    *,
    stragglers: float = 0.0,
    attack: conditions.Kind | None = None,
    attackers: float | None = None,
    attack_scale: float = 1.0,
    drift: drifts.Kind | None = None,
    drift_round: int | None = None,
    drift_share: float | None = None,
    arrive: float | None = None,
    leave: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Puts the federation under conditions.

    Args:
        data: the federation.
        stragglers: share of a round's clients that are late, and train for fewer epochs.
        attack: what attackers do: flip the labels of their rows, or send their update reversed or noise for it.
        attackers: share of the clients that attack.
        attack_scale: of what they send.
        drift: how the clients' data change after drift_round rounds, see `jaxfl.data.drift`.
        drift_round: rounds before the data change, or clients arrive or leave.
        drift_share: share of the clients whose data change; none is 0.5 for swap, 1 for rotate, 0.25 for new-group.
        arrive: share of the clients that are not there before; none or 0 is nobody.
        leave: share of the clients that are not there afterwards; none or 0 is nobody.
        seed: of who attacks, and whose data change.
    """
    data = conditions.straggle(data, stragglers) if stragglers else data  # a stored one may have its own
    if attack is None:
        unused = {"attackers": attackers or None, "attack_scale": None if attack_scale == 1.0 else attack_scale}
        for name, value in unused.items():
            if value is not None:
                raise ValueError(f"attack must be given with {name}={value}: one of {', '.join(conditions.KINDS)}.")
    else:
        if attackers is None:
            raise ValueError(f"attackers must be given with attack={attack}: the share of the clients, such as 0.2.")
        data = conditions.attack(data, attack, attackers, seed=seed, scale=attack_scale)
    asked = {"drift": drift, "arrive": arrive, "leave": leave, "drift_share": drift_share}
    if drift_round is None:
        for name, value in asked.items():
            if value:
                raise ValueError(f"drift_round must be given with {name}={value}: rounds before it, such as 50.")
        return data
    return drifts.drift(
        data, drift_round, kind=drift, share=drift_share, arrive=arrive or 0.0, leave=leave or 0.0, seed=seed
    )
