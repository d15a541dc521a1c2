from toy_bundles import manifest_content as plain  # noqa: F401
from toy_bundles import write_bundle as write  # noqa: F401
