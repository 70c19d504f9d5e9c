// The kernels of grouped.cu for formats with offsets or file blocks of 256 (fs_formats_k.h): ROCmFP2 affine, Q4_K, Q2_K and
// IQ2_XXS. Formula, shapes, launch and order as there; of formats with offsets the sums of activation blocks are staged
// too, and an output and block costs two or three flops more.
#include "fourspark.h"
#include "fs_formats_k.h"
#include "fs_grouped.h"

GROUPED(fp2a, FsFp2Affine)
GROUPED(q4k, FsQ4K)
GROUPED(q2k, FsQ2K)
GROUPED(iq2xxs, FsIq2Xxs)
