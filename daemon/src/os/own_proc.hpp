// A /proc that no other process can keep busy. A process that reads a directory of /proc into memory that never arrives
// (a page of a file system of its own) holds a lock of that directory. If another process waits for the lock, every
// look at a name there waits, in the kernel, for as long as these processes like. Any user can do so to the directory
// of a process of its own, whose name the daemon reads, and to the daemon's directory. The lock belongs to one instance
// of procfs.
#pragma once

namespace numacre::daemon {

// Mounts another instance over /proc, which shows as much as the old one (hidepid=). The mount is in a new mount
// namespace, which follows mounts and unmounts of others where their mounts are shared. To be called before any thread
// is started. If the mount is not allowed (no CAP_SYS_ADMIN), /proc stays as it is: systemd's ProtectProc= has then
// given us one of our own.
void take_own_proc();

}  // namespace numacre::daemon
