// Structs of numacre.h that grow: later versions append fields, and struct_size tells which fields a program was
// compiled with.
#pragma once

#include <cstddef>

namespace numacre::client {

// False: the program has not set struct_size. (No struct will ever be larger than a page.)
constexpr bool is_struct_size(std::size_t size) {
    return size >= sizeof size && size <= 4096;
}

}  // namespace numacre::client
