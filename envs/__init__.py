"""Worlds: Gymnasium environments with ids ``palaestra/NAME-v0``.

To add one, write a file like ``dynamic/ball_intercept.py`` and a line in :data:`WORLDS`.
"""

import gymnasium

_ARM = "palaestra.envs.robosuite_arm:RobosuiteArm"

WORLDS: dict[str, tuple[str, dict]] = {
    "BallIntercept": ("palaestra.envs.dynamic.ball_intercept:BallIntercept", {}),
    "TableTennis": ("palaestra.envs.dynamic.table_tennis:TableTennis", {}),
    "DetourIntercept": ("palaestra.envs.dynamic.detour_intercept:DetourIntercept", {}),
    "GuardedWipe": ("palaestra.envs.contact.guarded_wipe:GuardedWipe", {}),
    "PegInsert": ("palaestra.envs.contact.peg_insert:PegInsert", {}),
    "PixelReach": ("palaestra.envs.reach.pixel_reach:PixelReach", {}),
    "MatchingBandit": ("palaestra.envs.decision.matching_bandit:MatchingBandit", {}),
    "RuleDiscovery": ("palaestra.envs.decision.rule_discovery:RuleDiscovery", {}),
    "Blicket": ("palaestra.envs.decision.blicket:Blicket", {}),
    "BlicketMachine": ("palaestra.envs.decision.blicket_machine:BlicketMachine", {}),
    "PixelIntercept": ("palaestra.envs.dynamic.pixel_intercept:PixelIntercept", {}),
    **{
        f"robosuite.{task}": (_ARM, {"task": task})
        for task in (
            "Lift",
            "Stack",
            "Door",
            "Wipe",
            "NutAssembly",
            "NutAssemblySquare",
            "NutAssemblyRound",
            "PickPlace",
            "PickPlaceCan",
            "PickPlaceMilk",
            "PickPlaceBread",
            "PickPlaceCereal",
            "ToolHang",
            "TwoArmLift",
            "TwoArmPegInHole",
            "TwoArmHandover",
            "TwoArmTransport",
        )
    },
}
"""Name to entry point and keyword arguments; the id is ``palaestra/NAME-v0``."""


def register() -> None:
    """Make the ids known to Gymnasium. Strings only, so nothing heavy is imported; safe to call twice."""
    for name, (entry_point, kwargs) in WORLDS.items():
        env_id = f"palaestra/{name}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point, kwargs=kwargs)
