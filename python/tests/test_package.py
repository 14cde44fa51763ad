# SPDX-License-Identifier: Apache-2.0
"""The package as it is shipped: what import needs and takes, the ABI that it knows, the tool, the wheel, the
stubs."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import judge
import mica
from mica import _abi, _library

BUILD = pathlib.Path(os.environ["MICA_BUILD"])


def python(program, **environment):
    return subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True)


class Import(unittest.TestCase):
    def test_brings_in_no_other_library(self):
        found = python("import sys, mica; print([m for m in ('numpy', 'torch', 'jax', 'inspect', 'ml_dtypes') if m in sys.modules])")
        self.assertEqual(found.stdout, "[]\n", found.stderr)

    def test_needs_no_numpy(self):
        found = python("""
import sys
sys.modules["numpy"] = None
import mica, array
x, w = array.array("f", range(9)), array.array("f", [2])
y = mica.conv(memoryview(x).cast("B").cast("f", (1, 1, 3, 3)), memoryview(w).cast("B").cast("f", (1, 1, 1, 1)))
print(y.tolist())
""")
        self.assertEqual(found.stdout, "[[[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0], [12.0, 14.0, 16.0]]]]\n", found.stderr)

    def test_names_that_are_none(self):
        """What is asked for is often there by another name."""
        for name, words in (("convv", "did you mean conv?"), ("gelu", 'did you mean mica.activation(..., act="gelu")?'),
                            ("argmax", 'mica.reduce(..., kind="argmax")'), ("Plann", "did you mean Plan?")):
            with self.assertRaisesRegex(AttributeError, re.escape(words)):
                getattr(mica, name)
        with self.assertRaisesRegex(AttributeError, "has no attribute '__wrapped__'$"):
            mica.__wrapped__
        with self.assertRaisesRegex(mica.Invalid, "x is of type list; it is an array"):
            mica.softmax([1.0, 2.0])
        self.assertIn("x          in       f32:2x3", repr(mica.explain("softmax x=f32:2x3", context="cpu")))

    def test_takes_little_time(self):
        """CPU time, once in some tries: other programs do not count. docs/python.md has the figure."""
        program = "import time; t = time.process_time(); import mica; print(time.process_time() - t)"
        # twice what docs/python.md measured at most: other machines are slower
        self.assertTrue(any(float(python(program).stdout) < 0.12 for _ in range(15)))

    def test_says_where_it_looked(self):
        found = python("import mica", MICA_LIBRARY="/nonexistent/libmica.so")
        self.assertIn("ImportError: mica's library was not found; tried: /nonexistent/libmica.so (MICA_LIBRARY)", found.stderr)
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            found = python("import mica", MICA_LIBRARY=file.name)
            self.assertRegex(found.stderr, "ImportError: .*MICA_LIBRARY.*(too short|invalid ELF)")
        found = python("import mica", MICA_LIBRARY="libm.so.6")
        self.assertIn("has no mica_", found.stderr)

    def test_the_source_alone_says_what_it_lacks(self):
        found = python("import mica", PYTHONPATH=str(judge.ROOT / "python"))
        self.assertIn("make wheel", found.stderr)


class Abi(unittest.TestCase):
    def test_structs_are_the_compilers(self):
        """Sizes and offsets of every struct, as a C program sees them."""
        lines = []
        for struct in _abi.STRUCTS:
            lines.append(f'printf("%zu\\n", sizeof({struct.__name__}));')
            lines += [f'printf("%zu\\n", offsetof({struct.__name__}, {name}));' for name, *_ in struct._fields_]
        program = "#include <mica/mica.h>\n#include <stdio.h>\nint main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cc", "-x", "c", "-", "-I", str(judge.ROOT / "include"), "-o", f"{folder}/a"], input=program,
                           text=True, check=True)
            found = [int(n) for n in subprocess.run([f"{folder}/a"], capture_output=True, text=True, check=True).stdout.split()]
        expected = []
        for struct in _abi.STRUCTS:
            expected.append(ctypes.sizeof(struct))
            expected += [getattr(struct, name).offset for name, *_ in struct._fields_]
        self.assertGreater(len(expected), 80)
        self.assertEqual(found, expected)

    def test_functions_are_all_that_the_library_exports(self):
        found = subprocess.run(["nm", "-D", "--defined-only", _library.path], capture_output=True, text=True, check=True).stdout
        self.assertEqual(sorted(set(re.findall(r" T (mica_\w+)", found))), sorted(_abi.FUNCTIONS))


class Tool(unittest.TestCase):
    def test_python_m_mica(self):
        for arguments in (["--version"], ["explain", "-d", "cpu", "softmax x=f32:2x3"]):
            found = subprocess.run([sys.executable, "-m", "mica", *arguments], capture_output=True, text=True)
            direct = subprocess.run([str(BUILD / "mica"), *arguments], capture_output=True, text=True)
            self.assertEqual((found.returncode, found.stdout), (direct.returncode, direct.stdout), found.stderr)
        found = subprocess.run([sys.executable, "-m", "mica", "nosuch"], capture_output=True, text=True)
        self.assertEqual(found.returncode, 2)

    def test_info(self):
        self.assertEqual(mica.info()["python.library"], _library.path)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for dist in ("one", "two"):
            subprocess.run([sys.executable, str(judge.ROOT / "tools/python/wheel"), str(BUILD), f"{cls.folder}/{dist}"],
                           check=True, capture_output=True)
        cls.wheel, = pathlib.Path(cls.folder, "one").glob("*.whl")
        # A bare environment: nothing but what Python itself brings, and the wheel unpacked, as pip does it.
        cls.environment = pathlib.Path(cls.folder, "environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(cls.environment)], check=True, capture_output=True)
        site, = cls.environment.glob("lib/python3*/site-packages")
        with zipfile.ZipFile(cls.wheel) as archive:
            archive.extractall(site)
            for info in archive.infolist():
                os.chmod(site / info.filename, info.external_attr >> 16 & 0o777)
        cls.package = site / "mica"

    def run_bare(self, *arguments):
        return subprocess.run([str(self.environment / "bin/python"), *arguments], env={}, cwd="/", capture_output=True, text=True)

    def test_has_one_name_for_all_pythons(self):
        self.assertRegex(self.wheel.name, r"^mica-\d+\.\d+\.\d+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        self.assertIn(mica.__version__, self.wheel.name)

    def test_is_the_same_each_time(self):
        other, = pathlib.Path(self.folder, "two").glob("*.whl")
        self.assertEqual(self.wheel.read_bytes(), other.read_bytes())

    def test_runs_where_nothing_is_installed(self):
        found = self.run_bare("-c", "import mica, array; print(mica.transform(array.array('f', [1, 2]), alpha=2).tolist());"
                                    "print(mica.info()['python.library'])")
        self.assertEqual(found.stdout.splitlines(), ["[2.0, 4.0]", str(self.package / "lib" / _library.SONAME)], found.stderr)
        found = self.run_bare("-m", "mica", "--version")
        self.assertEqual(found.stdout, f"mica {mica.__version__}\n", found.stderr)

    def test_brings_what_a_system_may_lack(self):
        for file in [self.package / "bin/mica", *self.package.glob("lib/*")]:
            said = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
            if file.name.startswith(("mica", "libmica")):
                self.assertIn("$ORIGIN", re.search(r"RUNPATH.*\[(.*)\]", said)[1])
            for needed in re.findall(r"NEEDED.*\[(.*)\]", said):
                self.assertTrue(re.match(r"lib(c|m|dl|rt|pthread)\.so|ld-linux", needed) or (self.package / "lib" / needed).exists(),
                                f"{file.name} needs {needed}")
            versions = re.findall(r"GLIBC_2\.(\d+)", subprocess.run(["readelf", "-V", str(file)], capture_output=True,
                                                                  text=True, check=True).stdout)
            self.assertLessEqual(max(map(int, versions)), int(re.search(r"manylinux_2_(\d+)", self.wheel.name)[1]))
            self.assertNotIn("DT_RELR", subprocess.run(["readelf", "-V", str(file)], capture_output=True, text=True).stdout)

    def test_record_and_licences(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            info = names[0].split("/")[0] if ".dist-info" in names[0] else f"mica-{mica.__version__}.dist-info"
            record = archive.read(f"{info}/RECORD").decode().splitlines()
            self.assertEqual(sorted(r.split(",")[0] for r in record), sorted(names))
            self.assertIn(f"{info}/licenses/LICENSE", names)
            self.assertIn("Requires-Python: >=3.9", archive.read(f"{info}/METADATA").decode())
            for name in names:
                if re.search(r"lib(gomp|jansson)", name) and name.startswith("mica/lib/"):
                    text = archive.read(f"{info}/licenses/{name.split('/')[-1]}.txt").decode()
                    self.assertRegex(text, "GPL|MIT")

    def test_auditwheel(self):
        auditwheel = shutil.which("auditwheel")
        if not auditwheel:
            self.skipTest("auditwheel is not installed: the test above looked at what it would")
        found = subprocess.run([auditwheel, "show", str(self.wheel)], capture_output=True, text=True)
        said = " ".join(found.stdout.split())
        self.assertRegex(said, r'consistent with the following platform tag: "manylinux_2_\d+_x86_64"')

    def test_stubs(self):
        text = (self.package / "__init__.pyi").read_text()
        compile(text, "__init__.pyi", "exec")
        for name in mica.__all__:
            self.assertRegex(text, rf"(?m)^((def|class) {name}\b|{name}:)")
        mypy = shutil.which("mypy")
        if not mypy:
            self.skipTest("mypy is not installed: the stub was compiled and not checked")
        right = """
import mica
y = mica.conv([1.0], [2.0], pad=(1, 1), epilogue=["bias", "relu"])
p: mica.Plan = mica.plan("conv x=f32:1x3x8x8 w=f32:4x3x3x3")
e: str = p.engine
try:
    p.run()
except mica.Invalid as error:
    s: str = error.rule
"""
        wrong = {'mica.conv(0, 0, pass_="backwards")': "arg-type", "mica.conv(0, 0, nosuch=1)": "call-arg",
                 "mica.plan(3)": "arg-type", "mica.nosuch": "attr-defined"}
        programs = {"right": (right, None), **{f"wrong{i}": ("import mica\n" + text, code)
                                               for i, (text, code) in enumerate(wrong.items())}}
        for name, (program, _) in programs.items():
            pathlib.Path(self.folder, f"{name}.py").write_text(program)
        found = subprocess.run([mypy, "--strict", "--python-executable", str(self.environment / "bin/python"), "--cache-dir",
                                f"{self.folder}/cache", *(f"{name}.py" for name in programs)], cwd=self.folder,
                               env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
        self.assertNotIn("right.py", found.stdout)
        for name, (_, code) in programs.items():
            if code:
                self.assertRegex(found.stdout, rf"{name}\.py:2: error: .*\[{code}\]")


if __name__ == "__main__":
    unittest.main()
