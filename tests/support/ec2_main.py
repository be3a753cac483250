"""An EC2 to try scripts on: moto's, with the placement groups that it lacks.

python ec2_main.py PORT
"""

from __future__ import annotations

import sys
from xml.sax.saxutils import escape

from moto.ec2.responses import EC2Response
from moto.server import main

_ANSWER = "<{0}Response><requestId>0</requestId>{1}</{0}Response>"
_groups: set[str] = set()


def create(self: EC2Response) -> str:
    assert self._get_param("Strategy") == "cluster"
    _groups.add(self._get_param("GroupName"))
    return _ANSWER.format("CreatePlacementGroup", "<return>true</return>")


def delete(self: EC2Response) -> str:
    _groups.remove(self._get_param("GroupName"))
    return _ANSWER.format("DeletePlacementGroup", "<return>true</return>")


def describe(self: EC2Response) -> str:
    (names,) = self._filters_from_querystring().values()
    items = (f"<item><groupName>{escape(n)}</groupName></item>" for n in _groups if n in names)
    found = f"<placementGroupSet>{''.join(items)}</placementGroupSet>"
    return _ANSWER.format("DescribePlacementGroups", found)


EC2Response.create_placement_group = create  # type: ignore[method-assign]
EC2Response.delete_placement_group = delete  # type: ignore[method-assign]
EC2Response.describe_placement_groups = describe  # type: ignore[method-assign]

if __name__ == "__main__":
    main(["--port", sys.argv[1]])
