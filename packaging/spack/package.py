# Copyright Spack Project Developers. See COPYRIGHT file for details.
#
# SPDX-License-Identifier: (Apache-2.0 OR MIT)

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyMpidl(PythonPackage):
    """mpidl trains neural networks asynchronously on the ranks of one MPI job, through a sharded
    parameter server on one-sided windows (DistBelief)."""

    homepage = "https://PROJECT-URL"
    # A published archive has a checksum: `spack checksum py-mpidl` adds it to the version below.
    url = "https://PROJECT-URL/releases/download/v0.2.0/mpidl-0.2.0.tar.gz"
    git = "https://PROJECT-URL.git"

    license("BSD-3-Clause AND CC-BY-4.0")

    version("0.2.0", tag="v0.2.0")

    variant("report", default=False, description="Draw runs as HTML pages")
    variant("torch", default=False, description="Train PyTorch modules")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-numpy@2:")
        depends_on("py-h5py@3.11:")
        depends_on("py-numba@0.60:0.68")
        depends_on("py-llvmlite@0.43:0.50")
        depends_on("py-msgspec@0.18.6:")
        depends_on("py-simpy@4.1:")
        depends_on("py-greenlet@3.0.2:")
        depends_on("py-tqdm@4.66:")
        depends_on("py-mpi4py@4:")
        depends_on("py-lazy-loader@0.4:")
        depends_on("py-tomli-w@1:")
        depends_on("py-tomlkit@0.12:")
        depends_on("py-xxhash@3:")
        depends_on("py-bokeh@3.5:", when="+report")
        depends_on("py-torch@2.2:", when="+torch")

    def test_version(self):
        """run the command"""
        mpidl = which(self.prefix.bin.mpidl)
        mpidl("--version")
