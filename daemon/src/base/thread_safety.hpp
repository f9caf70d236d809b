// Macros that say which lock guards which member. clang checks them (-Wthread-safety: tests/tidy compiles the daemon
// with it); for other compilers they are empty. A lock and its members stand in one class, so that the names can be
// resolved.
#pragma once

#include <mutex>

#if defined(__clang__)
#define NUMACRE_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define NUMACRE_THREAD_SAFETY(attribute)
#endif
// For a member: it is read and written only with the lock held.
#define NUMACRE_GUARDED_BY(lock) NUMACRE_THREAD_SAFETY(guarded_by(lock))
// For a function: its caller holds the lock; or the function takes or releases it; or its body is beyond the checker.
#define NUMACRE_REQUIRES(...) NUMACRE_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define NUMACRE_ACQUIRE(...)  NUMACRE_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define NUMACRE_UNCHECKED     NUMACRE_THREAD_SAFETY(no_thread_safety_analysis)
#define NUMACRE_RELEASE(...)  NUMACRE_THREAD_SAFETY(release_capability(__VA_ARGS__))

namespace numacre::daemon {

// A std::mutex with the annotations that clang needs.
class NUMACRE_THREAD_SAFETY(capability("mutex")) Mutex {
public:
    void lock() NUMACRE_ACQUIRE() { mutex_.lock(); }
    void unlock() NUMACRE_RELEASE() { mutex_.unlock(); }

private:
    std::mutex mutex_;
};

// Holds the lock until the end of the scope.
class NUMACRE_THREAD_SAFETY(scoped_lockable) MutexLock {
public:
    explicit MutexLock(Mutex &mutex) NUMACRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    ~MutexLock() NUMACRE_RELEASE() { mutex_.unlock(); }
    MutexLock(const MutexLock &) = delete;
    MutexLock &operator=(const MutexLock &) = delete;

private:
    Mutex &mutex_;
};

}  // namespace numacre::daemon
