"""A dozen plans of the campaign, one of each kind; `make campaign` runs all plans."""

from tests.campaign.judging import Judge


def test_one_plan_of_each_kind(judge: Judge) -> None:
    assert not judge.one_of_each_kind("fail")
