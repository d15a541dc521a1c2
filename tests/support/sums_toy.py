from toy_bundles import write_sum_bundle as build_sums  # noqa: F401
