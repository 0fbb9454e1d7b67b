"""Two builds of an image from the same files, with no cache from one to the other, are identical."""

import os
from pathlib import Path

import pytest

from localcluster import pipconfig
from localcluster.buildah import Buildah
from localcluster.layout import read_layout
from tests.e2e.conftest import ROOT, cluster_command
from tests.support.soak_marks import in_soak

pytestmark = in_soak


@pytest.mark.parametrize("image", ["operator", "runtime"])
def test_an_image_build_is_reproducible(image: str, tmp_path: Path) -> None:
    cluster_command("build-images", image)  # its base image and the storage are cached by then
    layout = read_layout(os.environ, ROOT)
    buildah, settings, conf = Buildah(layout), pipconfig.read_settings(os.environ), tmp_path / "pip.conf"
    conf.write_text(pipconfig.render(settings), encoding="utf-8")

    def digest() -> str:
        name = f"localhost/pstraining/{image}:again"
        mounts, log = pipconfig.mounts(settings, conf), tmp_path / "log"
        buildah.build(ROOT, target=image, name=name, mounts=mounts, log=log, on_line=lambda _: None, cached=False)
        return buildah.store().find(name).digest

    assert digest() == digest()
