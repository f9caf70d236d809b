/* A program's module that has the archive libnumacre.a in it: unload_test finds the calls here by their own names. */
#include "numacre/numacre.h"

typedef void (*Function)(void);
extern const Function numacre_module_uses[];
const Function numacre_module_uses[] = {(Function)numacre_open_private, (Function)numacre_alloc, (Function)numacre_free};
