"""Kernels import this module before `redhareapi`. WMLA selects the version of the API with it; there is only one."""

#: The version of the API.
VERSION = "1"
