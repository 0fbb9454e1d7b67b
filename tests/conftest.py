"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code: bench/ measures time.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
