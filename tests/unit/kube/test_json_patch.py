"""The operations of a JSON Patch that a replacement sends."""

from pstraining.kube.client import json_patch


def test_values_are_added_in_their_order_and_none_removes_a_member() -> None:
    assert json_patch({"/metadata/uid": "1", "/spec/limit": None, "/spec/empty": {}}) == [
        {"op": "add", "path": "/metadata/uid", "value": "1"},
        {"op": "remove", "path": "/spec/limit"},
        {"op": "add", "path": "/spec/empty", "value": {}},
    ]
