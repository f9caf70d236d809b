// malloc and free of whichever library is in front: the parent process chooses it with LD_PRELOAD.
#include <dlfcn.h>

#include <cstdlib>

#include "measure.hpp"

namespace numacre::bench {
namespace {

class Malloc {
public:
    static constexpr Traits kTraits{.writes_into_blocks = true};
    explicit Malloc(const Run &run) {
        const std::string library = run.allocator == "glibc" ? "libc.so" : "lib" + run.allocator;
        Dl_info found{};
        if (dladdr(dlsym(RTLD_DEFAULT, "malloc"), &found) == 0) throw std::runtime_error("nobody provides malloc");
        if (std::string_view(found.dli_fname).find(library) == std::string_view::npos)
            throw Unavailable("no " + library + ": malloc is that of " + found.dli_fname);
    }
    class Thread {
    public:
        Thread(Malloc &, std::uint64_t) {}
        void *allocate(std::size_t bytes) {
            void *block = std::malloc(bytes);
            // The compiler knows malloc, and would leave out a block that nobody uses.
            asm volatile("" : "+r"(block) : : "memory");
            return block;
        }
        void free(void *block) { std::free(block); }
    };
};

const Registered glibc{"glibc", measure<Malloc>};
const Registered jemalloc{"jemalloc", measure<Malloc>};
const Registered mimalloc{"mimalloc", measure<Malloc>};
const Registered tcmalloc{"tcmalloc", measure<Malloc>};

}  // namespace
}  // namespace numacre::bench
