// An executable of its own for allocators whose libraries would change the process of the others.
#include "child.hpp"

int main(int argc, char **argv) {
    return numacre::bench::child_main(argc, argv);
}
