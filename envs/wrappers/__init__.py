"""Perturbations: wrappers named after the id, ``palaestra/robosuite.Lift-v0+sensor_noise:std=0.02``.

Each is a ``gymnasium.Wrapper`` that changes what is seen and never what happens: with the same seed the wrapped
world goes through the same states as the plain one, which is its matched arm. To add one, write a file like
``sensor_noise.py`` and a line in :data:`PERTURBATIONS`.
"""

PERTURBATIONS: dict[str, str] = {
    "distractor": "palaestra.envs.wrappers.distractor:Distractor",
    "sensor_noise": "palaestra.envs.wrappers.sensor_noise:SensorNoise",
    "viewpoint": "palaestra.envs.wrappers.viewpoint:Viewpoint",
}
"""Name to ``module:Class``. Strings, so that naming a perturbation imports nothing else."""
