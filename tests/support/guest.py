"""Guests of QEMU, without KVM, on the small kernel of Debian's cloud images: their kernel, their root, and what they
say.

The kernel is downloaded into the build folder and never installed. A guest's root is an initramfs: built programs and
programs of this machine, with their libraries.
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from .daemon import bin_dir

BIN = bin_dir()
BUILD = pathlib.Path(os.environ.get("NUMACRE_BUILD_DIR") or BIN.parent)
FOLDER = BUILD / "multinode"
DEFAULT_SECONDS = 600
# To tell what was wrong, after the guest's or the download's time is over.
LAST_SECONDS = 5
PR_SET_PDEATHSIG = 1
# What a kernel need not do in a guest that lives for seconds.
QUICK = "mitigations=off init_on_alloc=0 cryptomgr.notests=1 rcupdate.rcu_expedited=1"


class Skip(Exception):
    pass


class Kernel:
    def __init__(self, package, suffix=""):
        self.package = package
        self.image = FOLDER / f"vmlinuz{suffix}"
        # Why there is none: the cases need not find that out again.
        self.missing = FOLDER / f"no-kernel{suffix}"


KERNEL = Kernel("linux-image-cloud-amd64")
NEWER_KERNEL = Kernel("linux-image-6.12-cloud-amd64", "-6.12")


class Deadline:
    """One for everything that this process waits for. seconds: all of it has ended by then, one way or another."""

    def __init__(self):
        self._started = time.monotonic()
        self.seconds = DEFAULT_SECONDS

    def passed(self):
        return time.monotonic() - self._started

    def left(self):
        return max(self.seconds - LAST_SECONDS - self.passed(), 0.0)


deadline = Deadline()


libc = ctypes.CDLL(None)
ourselves = os.getpid()


def die_with_parent():
    """In a child, before its program: nothing that we have started outlives us, whatever we die of."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != ourselves:  # it was too late for that
        os._exit(1)


def run(*command, **options):
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline.left(),
        preexec_fn=die_with_parent,
        **options,
    )


def must_run(*command):
    done = run(*map(str, command))
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(done.args)}: exit status {done.returncode}\n{done.stderr}")


PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "strip": "binutils",
    "apt-get": "apt",
    "dpkg": "dpkg",
}


def wanted_program(name):
    found = shutil.which(name)
    if found is None:
        raise Skip(f"{name} is not installed (Debian package {PROGRAMS[name]})")
    return found


def kernel_package_name(meta_package, *options):
    """The package that it stands for at the moment: linux-image-<version>-cloud-amd64."""
    listed = run("apt-cache", *options, "depends", meta_package)
    match = re.search(r"Depends: (linux-image-\S+)", listed.stdout)
    return match.group(1) if match else None


def download_kernel(kernel):
    """Leaves its image. Lists of packages of our own where the machine's know no kernel, or an old one."""
    own_lists = FOLDER / "apt"
    for part in ("lists/partial", "archives/partial"):
        (own_lists / part).mkdir(parents=True, exist_ok=True)
    own = ["-o", f"Dir::State::Lists={own_lists}/lists", "-o", f"Dir::Cache={own_lists}"]
    reason = ""
    try:
        for options in ([], own):
            if options:
                reason += run("apt-get", *options, "-qq", "update").stderr
            name = kernel_package_name(kernel.package, *options)
            if name is None:
                reason += f"apt knows no {kernel.package}\n"
                continue
            with tempfile.TemporaryDirectory(dir=FOLDER) as work:
                got = run("apt-get", *options, "-qq", "download", name, cwd=work)
                packages = list(pathlib.Path(work).glob("*.deb"))
                if got.returncode != 0 or not packages:
                    reason += got.stderr
                    continue
                must_run("dpkg", "-x", packages[0], work)
                (image,) = pathlib.Path(work, "boot").glob("vmlinuz-*")
                image.rename(kernel.image)
                return
    except subprocess.TimeoutExpired as late:
        reason += f"{' '.join(late.cmd[:1] + late.cmd[-2:])}: no answer after {deadline.passed():.0f} s in all\n"
    raise Skip(f"the package {kernel.package} cannot be downloaded: {reason.strip()}")


def kernel_version(kernel):
    """As the image's header has it (see the kernel's Documentation/arch/x86/boot.rst)."""
    image = kernel.image.read_bytes()
    if image[0x202:0x206] != b"HdrS":
        raise AssertionError(f"{kernel.image} is no kernel: delete it")
    begin = int.from_bytes(image[0x20E:0x210], "little") + 0x200
    return image[begin : image.index(b"\0", begin)].decode(errors="replace")


def fetch_kernel(kernel):
    """What the cases wait for. Where it cannot be had, they are told why."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kernel.missing.unlink(missing_ok=True)
    cached = kernel.image.exists()
    if not cached:
        try:
            for name in PROGRAMS:
                wanted_program(name)  # else there is no use for it
            download_kernel(kernel)
        except Skip as reason:
            kernel.missing.write_text(f"{reason}\n")
            raise
    print(f"kernel {kernel_version(kernel)}{', of an earlier download' if cached else ''}")


def image_of(kernel):
    if kernel.image.exists():
        return kernel.image
    if kernel.missing.exists():
        raise Skip(kernel.missing.read_text().strip())
    raise Skip("there is no kernel yet: `multinode_test.py kernel`, the test multinode_kernel, downloads it")


# Modes of what is in an archive.
PROGRAM, TEXT, FOLDER_MODE, LINK = 0o100755, 0o100644, 0o040755, 0o120777


class Archive:
    """A cpio archive in the format "newc", of which the kernel makes its root."""

    def __init__(self, file):
        self._file = file
        self._names = set()

    def add(self, name, data=b"", mode=PROGRAM):
        parent = os.path.dirname(name)
        if parent and parent not in self._names:
            self.add(parent, mode=FOLDER_MODE)
        if name in self._names:
            return
        self._names.add(name)
        encoded = name.encode() + b"\0"
        fields = [len(self._names), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0]
        self._file.write(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded)
        self._pad()
        self._file.write(data)
        self._pad()

    def _pad(self):
        self._file.write(bytes(-self._file.tell() % 4))

    def add_shell(self):
        """bin/sh and all that busybox can do."""
        busybox = wanted_program("busybox")
        if libraries_of(busybox):
            raise Skip(f"{busybox} is linked dynamically: install Debian's busybox-static")
        self.add("bin/busybox", pathlib.Path(busybox).read_bytes())
        for applet in run(busybox, "--list").stdout.split():
            self.add(f"bin/{applet}", b"busybox", mode=LINK)

    def add_programs(self, programs, folder="bin"):
        """Without debug information, for all of the guest's root is memory; with the libraries that they need."""
        wanted_program("strip")
        with tempfile.TemporaryDirectory() as work:
            for program in programs:
                stripped = pathlib.Path(work) / program.name
                must_run("strip", "-o", stripped, program)
                self.add(f"{folder}/{program.name}", stripped.read_bytes())
        for library in sorted(set().union(*map(libraries_of, programs))):
            # Where the program says, or where the loader looks by itself.
            where = str(library) if "ld-linux" in library.name else f"lib/{library.name}"
            self.add(where.lstrip("/"), library.read_bytes())

    def close(self):
        self.add("TRAILER!!!", mode=0)


def libraries_of(program):
    listed = run("ldd", str(program)).stdout
    if "not found" in listed:
        raise AssertionError(f"ldd {program}:\n{listed}")
    return {pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}


def boot(kernel, write_root, machine, parameters=""):
    """The lines that the guest has said. write_root(archive): its root. machine: QEMU's arguments for processors and
    memory. parameters: more of the kernel's."""
    qemu = wanted_program("qemu-system-x86_64")
    image = image_of(kernel)
    # Without a name: nothing of it is left, whatever we die of.
    with tempfile.TemporaryFile(dir=FOLDER) as root:
        archive = Archive(root)
        write_root(archive)
        archive.close()
        root.flush()
        command = [qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]
        command += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", *machine]
        command += ["-kernel", str(image), "-initrd", f"/proc/self/fd/{root.fileno()}"]
        command += ["-append", f"console=ttyS0 quiet panic=-1 {QUICK} {parameters}"]
        guest = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[root.fileno()],
            preexec_fn=die_with_parent,
        )
        try:
            output, _ = guest.communicate(timeout=deadline.left())
        except subprocess.TimeoutExpired:
            guest.kill()
            output, _ = guest.communicate()
            output += f"\nFAIL the guest had not ended after {deadline.passed():.0f} s\n".encode()
        finally:
            guest.kill()  # nothing, if it has ended
            guest.wait()
    return output.decode(errors="replace").replace("\r", "").splitlines()


def documents(lines):
    """What lines "json NAME TEXT" have said, by name: of those of one name the last."""
    found = {}
    for line in lines:
        if line.startswith("json "):
            _, name, text = line.split(" ", 2)
            found[name] = json.loads(text)
    return found


def end_on_sigterm():
    """Through every `finally`, as after an interrupt from the keyboard."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
