// The kernels of tiled.cu for formats with offsets or file blocks of 256 (fs_formats_k.h): ROCmFP2 affine, Q4_K, Q2_K and
// IQ2_XXS. Formula, shapes, launch, cost and order as there; blocks a multiple of 8 but for affine. An offset costs two or
// three flops a block and column; IQ2_XXS reads four points of a table of 1 KiB a block, from the L1.
#include "fourspark.h"
#include "fs_formats_k.h"
#include "fs_gemv.h"

TILED(fp2a, FsFp2Affine, 3, false)
TILED(q4k, FsQ4K, 2, false)
TILED(q2k, FsQ2K, 2, false)
TILED(iq2xxs, FsIq2Xxs, 2, false)
