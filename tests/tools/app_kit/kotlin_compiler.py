"""The real Kotlin compiler, if there is one: ``kotlinc``, or that of the pip package ``kotlin-jupyter-kernel``, which
runs on any Java. What generated code calls of PyTorch Mobile and Android is declared to it in Java."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kotlin_checker import API

_ANDROID = {
    "android.content.Context": "public abstract class Context { public abstract java.io.File getFilesDir(); "
    "public abstract java.io.File getCacheDir(); public abstract java.io.File getNoBackupFilesDir(); "
    "public abstract android.content.res.AssetManager getAssets(); }",
    "android.content.res.AssetManager": "public final class AssetManager { "
    "public java.io.InputStream open(String name) throws java.io.IOException { throw new RuntimeException(); } }",
    "android.app.Instrumentation": "public class Instrumentation { "
    "public android.content.Context getContext() { return null; } "
    "public android.content.Context getTargetContext() { return null; } }",
    "androidx.test.platform.app.InstrumentationRegistry": "public final class InstrumentationRegistry { "
    "public static android.app.Instrumentation getInstrumentation() { return null; } }",
    "androidx.test.ext.junit.runners.AndroidJUnit4": "public final class AndroidJUnit4 "
    "extends org.junit.runner.Runner {}",
    "org.junit.runner.Runner": "public abstract class Runner {}",
    "org.junit.runner.RunWith": "@java.lang.annotation.Retention(java.lang.annotation.RetentionPolicy.RUNTIME) "
    "public @interface RunWith { Class<? extends Runner> value(); }",
    "org.junit.Test": "@java.lang.annotation.Retention(java.lang.annotation.RetentionPolicy.RUNTIME) "
    "public @interface Test {}",
    "org.junit.Assert": "public class Assert { public static void assertEquals(Object a, Object b) {} "
    "public static void assertEquals(String m, Object a, Object b) {} "
    "public static void assertEquals(long a, long b) {} "
    "public static void assertEquals(double a, double b, double e) {} public static void assertNull(Object a) {} "
    "public static void assertArrayEquals(long[] a, long[] b) {} "
    "public static void assertArrayEquals(String m, long[] a, long[] b) {} "
    "public static void assertArrayEquals(double[] a, double[] b, double e) {} "
    "public static void assertArrayEquals(boolean[] a, boolean[] b) {} "
    "public static void assertTrue(String m, boolean a) {} public static void assertTrue(boolean a) {} }",
    "org.json.JSONObject": "public class JSONObject { public JSONObject(String text) {} "
    "public JSONObject getJSONObject(String name) { return null; } "
    "public JSONArray getJSONArray(String name) { return null; } "
    "public String getString(String name) { return null; } }",
    "org.json.JSONArray": "public class JSONArray { public int length() { return 0; } "
    "public long getLong(int index) { return 0; } }",
}
"""As their public documentation has them."""


def find_compiler() -> list[str] | None:
    """The command of the compiler, without its arguments; None without one, or without Java."""
    if not (shutil.which("java") and shutil.which("javac")):
        return None
    if shutil.which("kotlinc"):
        return ["kotlinc"]
    package = importlib.util.find_spec("run_kotlin_kernel")
    if package is None or not package.submodule_search_locations:
        return None
    jars = ":".join(map(str, Path(package.submodule_search_locations[0], "jars").glob("*.jar")))
    return ["java", "-Xmx1g", "-cp", jars, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-no-stdlib", "-no-reflect"]


def standard_library() -> str:
    """The path of Kotlin's standard library."""
    package = importlib.util.find_spec("run_kotlin_kernel")
    if package is not None and package.submodule_search_locations:
        return str(next(Path(package.submodule_search_locations[0], "jars").glob("kotlin-stdlib-*.jar")))
    found = shutil.which("kotlinc")
    assert found is not None
    return str(Path(found).resolve().parents[1] / "lib" / "kotlin-stdlib.jar")


def declare_api(folder: Path) -> Path:
    """Compile Java classes with the methods of the table, and of Android; gives their folder."""
    sources = {name: _java(name) for name in API["java"]} | {
        name: f"package {name.rpartition('.')[0]};\n{text}" for name, text in _ANDROID.items()
    }
    return compile_java(folder, sources)


def compile_java(folder: Path, sources: dict[str, str], classes: Sequence[str] = ()) -> Path:
    """Compile Java sources by the names of their classes; gives the folder of what was compiled."""
    files = []
    for name, text in sources.items():
        file = folder / "java" / f"{name.replace('.', '/')}.java"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        files.append(str(file))
    out = folder / "classes"
    path = ":".join([str(out), *classes])
    done = subprocess.run(["javac", "-d", str(out), "-cp", path, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def _java(name: str) -> str:
    """A class of the table, with methods that do nothing."""
    package, _, short = name.rpartition(".")
    item = API["java"][name]
    if "constants" in item:
        return f"package {package};\npublic enum {short} {{ {', '.join(item['constants'])} }}\n"
    methods = []
    for number, text in enumerate(item["methods"]):
        head, _, parameters = text.partition(" ")[2].removesuffix(")").partition("(")
        given = re.split(r", (?![^<]*>)", parameters) if parameters else []
        names = ", ".join(f"{kind} p{number}_{place}" for place, kind in enumerate(given))
        methods.append(f"  public {head}({names}) {{ throw new UnsupportedOperationException(); }}")
    return f"package {package};\npublic {item['kind']} {short} {{\n" + "\n".join(methods) + "\n}\n"


def compile_kotlin(compiler: Sequence[str], files: Sequence[Path], classes: Path, out: Path) -> str:
    """Compile Kotlin; gives what the compiler says, which is nothing if it is content."""
    path = f"{classes}:{standard_library()}"
    command = [*compiler, "-classpath", path, "-Werror", "-d", str(out), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert bool(done.returncode) == ("error:" in said), said
    return said
