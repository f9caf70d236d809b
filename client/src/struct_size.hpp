// Structs of numacre.h that grow: later versions append fields, and struct_size tells which fields a program was
// compiled with.
#pragma once

#include <cstddef>
#include <cstring>

#include "errors.hpp"
#include "numacre/error.hpp"
#include "numacre/numacre.h"

namespace numacre::client {

// False: the program has not set struct_size. (No struct will ever be larger than a page.)
constexpr bool is_struct_size(std::size_t size) {
    return size >= sizeof size && size <= 4096;
}

// Reads a program's options. An older program has fewer fields than the library: the missing fields are 0. A newer
// program may have more fields: this library accepts them only if they are 0. name: the struct's. Returns 0, or -errno
// with the error remembered.
template <class Options>
int read_options(const Options &options, const char *name, Options &wanted) {
    const std::size_t size = options.struct_size;
    if (!is_struct_size(size))
        return fail_with_remedy(Errc::bad_argument, "%s.struct_size is %zu: set it to sizeof(%s)", name, size, name);
    const auto *const bytes = reinterpret_cast<const char *>(&options);
    for (std::size_t i = sizeof wanted; i < size; ++i)
        if (bytes[i] != 0)
            return fail_with_remedy(
                Errc::bad_argument,
                "%s has a field at byte %zu that libnumacre %s does not know: set it to 0, or use a newer "
                "library",
                name, i, numacre_version());
    std::memcpy(&wanted, &options, size < sizeof wanted ? size : sizeof wanted);
    return 0;
}

}  // namespace numacre::client
