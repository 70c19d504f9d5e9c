// The kernels of grouped.cu for Q8_0, MXFP4, ROCmFP4, ROCmFP6 and ROCmFP8: formula, shapes, launch, cost and order as
// there; an output and block costs a flop more for Q8_0 and MXFP4, whose scales times dots are not always exact.
#include "fourspark.h"
#include "fs_grouped.h"

GROUPED(q8, FsQ8)
GROUPED(mxfp4, FsMxfp4)
GROUPED(fp4, FsFp4)
GROUPED(fp6, FsFp6)
GROUPED(fp8, FsFp8)
