"""What an installed package carries besides code."""

from importlib.metadata import distribution


def test_the_license_is_installed_with_the_package():
    package = distribution("pfo-gpu")
    assert package.metadata["License-Expression"] == "Apache-2.0"
    (license_file,) = [file for file in package.files if file.name == "LICENSE"]
    assert "Apache License" in license_file.read_text()
