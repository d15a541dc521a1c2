from pathlib import Path

from gallery import gallery
from toy_bundles import STUCK, write_slow_bundle, write_stuck_bundle, write_vector_bundle  # noqa: F401


def train_language_model(folder: Path) -> Path:
    return gallery("generation").bundle
