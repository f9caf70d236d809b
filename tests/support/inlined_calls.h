/* Included before a test's source (-include): its allocations and frees are those that callers compile in. */
#pragma once

#include "numacre/inline.h"

#define numacre_alloc numacre_alloc_inline
#define numacre_free  numacre_free_inline
