// A /proc that no other process can keep busy. A process that reads a directory of /proc into memory that never comes
// (a page of a file system of its own) holds a lock of that directory, and with another who waits for it every look at
// a name there waits, in the kernel, for as long as they like: any user may do so to the directory of a process of its
// own, whose name the daemon reads, and to the daemon's. The lock is that of one instance of procfs.
#pragma once

namespace numacre::daemon {

// Mounts another instance over /proc, that shows as much (hidepid=), in a mount namespace that is made for it and
// follows what others mount and unmount where their mounts are shared. Before any thread is started. Where that may not
// be (no CAP_SYS_ADMIN), /proc stays as it is: systemd's ProtectProc= has then given us one.
void take_own_proc();

}  // namespace numacre::daemon
