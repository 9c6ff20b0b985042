"""The stubs say what the extension has."""

import ast
import inspect
import pathlib

import dafs._dafs
import pytest

_STUBS = pathlib.Path(dafs._dafs.__file__).with_name("_dafs.pyi")
_CLASSES = {node.name: node for node in ast.parse(_STUBS.read_text()).body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("name", sorted(_CLASSES))
def test_a_class_has_what_its_stub_says(name):
    real = getattr(dafs._dafs, name)
    stub = {node.name: node for node in _CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    public = {word for word in vars(real) if not word.startswith("_")}
    assert public == {word for word in stub if not word.startswith("_")}
    for word in public:
        if inspect.isgetsetdescriptor(getattr(real, word)):
            continue
        signature = inspect.signature(getattr(real, word))
        named = [one for one in signature.parameters if one != "self"]
        arguments = stub[word].args
        said = [one.arg for one in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
        said += [one.arg for one in [arguments.vararg] if one]
        assert [one for one in said if one != "self"] == named or arguments.vararg, word


def test_all_classes_have_a_stub():
    real = {name for name, value in vars(dafs._dafs).items() if inspect.isclass(value)}
    assert real == set(_CLASSES)
