"""What an installed package carries besides code."""

import pickle
from importlib.metadata import distribution

import pfo_gpu


def test_the_license_is_installed_with_the_package():
    package = distribution("pfo-gpu")
    assert package.metadata["License-Expression"] == "Apache-2.0"
    (license_file,) = [file for file in package.files if file.name == "LICENSE"]
    assert "Apache License" in license_file.read_text()


def test_a_problem_is_pickled_as_a_logger_of_another_process_does():
    problem = pfo_gpu.Problem(150, "no daemon", "start it")
    again = pickle.loads(pickle.dumps(problem))
    assert (again.code, again.message, again.remedy) == (150, "no daemon", "start it")
