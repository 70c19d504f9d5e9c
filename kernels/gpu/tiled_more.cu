// The kernels of tiled.cu for the other formats of blocks of 32: Q8_0, MXFP4, ROCmFP4, 6 and 8, and ROCmFP2 of dialect S40.
// Formula, shapes, launch, cost and order as there.
#include "fourspark.h"
#include "fs_gemv.h"

TILED(q8, FsQ8, 2, false)
TILED(mxfp4, FsMxfp4, 3, false)
TILED(fp4, FsFp4, 3, false)
TILED(fp6, FsFp6, 2, false)
TILED(fp8, FsFp8, 2, false)
TILED(fp2s40, FsFp2Table, 3, false)
