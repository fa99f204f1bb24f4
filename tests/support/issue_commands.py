"""Command lines of trtexec and Polygraphy from public issues, as their reporters typed them.

Each with the inputs that the model of the issue had, as far as the issue tells, and what must become of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from issue_models import Extents

_TRT = "https://github.com/NVIDIA/TensorRT/issues"
_IMAGE: Mapping[str, Extents] = {"images": (1, 3, 32, 32)}


@dataclass(frozen=True)
class IssueCommand:
    """One command line.

    Attributes:
        source: Where it stands.
        command: As it stands there.
        model: Where the ONNX file lies, relative to the working folder.
        precision: What the engine must be proven to compute in.
        inputs: Name to extents; a name is a dynamic axis.
        types: Name to type, of inputs that are not float32.
        layers: Names of its convolutions.
        floats: `float_precision` of the artifact.
        missing: Beginnings of the options that have no equal for TensorRT-RTX, in order.
        data: Whether it must ask for samples first.
        cache: The calibration cache beside it.
        loader: The script of Polygraphy's loader beside it.
        quantized: Whether the file holds Q/DQ.
        paths: Paths of the command, as they are here.
        compares: Options of `qcompile diff` that follow; None where nothing is compared.
        by_layer: Node to the precision that single layers must have.
    """

    source: str
    command: str
    model: str
    precision: str
    inputs: Mapping[str, Extents] = field(default_factory=lambda: _IMAGE)
    types: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[str] = ()
    floats: str = "fp32"
    missing: Sequence[str] = ()
    data: bool = False
    cache: str = ""
    loader: str = ""
    quantized: bool = False
    paths: Sequence[str] = ()
    compares: Sequence[str] | None = None
    by_layer: Mapping[str, str] = field(default_factory=dict)


TRTEXEC = [
    IssueCommand(
        f"{_TRT}/1703",
        "/usr/src/tensorrt/bin/trtexec --onnx=erfnet.onnx --int8 --saveEngine=erf_int8.engine "
        "--calib=erfnet_quantized_int8.cache --verbose",
        "erfnet.onnx",
        "int8",
        cache="erfnet_quantized_int8.cache",
    ),
    IssueCommand(
        f"{_TRT}/3612",
        "trtexec --onnx=model.onnx --useCudaGraph --calib=model_calibrated_mixed.cache --verbose "
        "--saveEngine=model_calibrated_mixed.engine --best",
        "model.onnx",
        "int8",
        floats="fp16",
        cache="model_calibrated_mixed.cache",
    ),
    IssueCommand(
        "https://github.com/ultralytics/ultralytics/issues/14999",
        "/usr/src/tensorrt/bin/trtexec --onnx=yolov8n.onnx --saveEngine=yolov8n.engine --int8 --useDLACore=0",
        "yolov8n.onnx",
        "int8",
        data=True,
        missing=["--useDLACore"],
    ),
    IssueCommand(
        f"{_TRT}/4492",
        "trtexec --onnx=tlr_202506151003.onnx --saveEngine=model_fp32.plan",
        "tlr_202506151003.onnx",
        "tf32",
    ),
    IssueCommand(
        f"{_TRT}/2043",
        "trtexec --onnx=resnet18-v1-7.onnx --explicitBatch --int8 --allowGPUFallback --useDLACore=1 "
        "--workspace=2048 --shapes=data:1x3x224x224",
        "resnet18-v1-7.onnx",
        "int8",
        inputs={"data": ("N", 3, 224, 224)},
        data=True,
        missing=["--useDLACore"],
    ),
    IssueCommand(
        "https://github.com/onnx/onnx-tensorrt/issues/763",
        "root@e5e2a4db1bc3:/workspace# /usr/src/tensorrt/bin/trtexec --explicitBatch --onnx=model.onnx "
        "--minShapes=input:1x1x1539 --optShapes=input:1x200x1539 --maxShapes=input:1x500x1539 "
        "--shapes=input:1x250x1539 --verbose",
        "model.onnx",
        "tf32",
        inputs={"input": (1, "frames", 1539)},
    ),
    IssueCommand(
        f"{_TRT}/3229",
        'D:\\python_workspace\\stable-diffusion-webui>"D:\\python_workspace\\stable-diffusion-webui\\extensions\\'
        'stable-diffusion-webui-tensorrt\\TensorRT-8.6.1.6\\bin\\trtexec.exe" '
        '--onnx="D:\\python_workspace\\stable-diffusion-webui\\models\\Unet-onnx\\'
        'majicmix-Realistic_betterV2V25.onnx" --saveEngine="D:\\python_workspace\\stable-diffusion-webui\\'
        'models\\Unet-trt\\majicmix-Realistic_betterV2V25.trt" --minShapes=x:2x4x64x64,context:2x77x768,'
        "timesteps:2 --maxShapes=x:2x4x64x64,context:2x77x768,timesteps:2 --fp16 --workspace=8192",
        "models/Unet-onnx/majicmix-Realistic_betterV2V25.onnx",
        "fp16",
        inputs={"x": ("batch", 4, "h", "w"), "context": ("batch", "tokens", 768), "timesteps": ("batch",)},
        paths=["D:\\python_workspace\\stable-diffusion-webui=."],
    ),
    IssueCommand(
        "https://github.com/pbridger/deepstream-video-pipeline/issues/3",
        "trtexec --onnx=checkpoints/ds_trt_4.onnx --saveEngine=checkpoints/ds_trt_4.engine --fp16 "
        "--explicitBatch --minShapes=image_nchw:1x3x300x300 --optShapes=image_nchw:8x3x300x300 "
        "--maxShapes=image_nchw:8x3x300x300 --buildOnly",
        "checkpoints/ds_trt_4.onnx",
        "fp16",
        inputs={"image_nchw": ("batch", 3, 300, 300)},
    ),
    IssueCommand(
        "https://github.com/pytorch/TensorRT/issues/1340",
        "trtexec --onnx=./onnx/bert-sparse-ASP-qabase-sq128-b1.onnx --sparsity=force --workspace=4096",
        "onnx/bert-sparse-ASP-qabase-sq128-b1.onnx",
        "tf32",
        inputs={"hidden": (1, 128, 64)},
        missing=["--sparsity=force"],
    ),
    IssueCommand(
        f"{_TRT}/2271",
        "root@shangw-MS-7D25:/workspace/bert# trtexec --onnx=results/SQuAD/test_finetuned_checkpoint_pruned_"
        "by_asp_then_refinetuned/1xNVIDIA_GeForce_RTX_3090/fp16/seed\\=0/pytorch_model.onnx "
        "--saveEngine=results/SQuAD/test_finetuned_checkpoint_pruned_by_asp_then_refinetuned/1xNVIDIA_GeForce_"
        "RTX_3090/fp16/seed\\=0/pytorch_model.plan --workspace=24576 "
        "--minShapes=input_ids:1x384,segment_ids:1x384,input_mask:1x384 "
        "--optShapes=input_ids:16x384,segment_ids:16x384,input_mask:16x384 "
        "--maxShapes=input_ids:16x384,segment_ids:16x384,input_mask:16x384 --fp16 --sparsity=enable ",
        "results/SQuAD/test_finetuned_checkpoint_pruned_by_asp_then_refinetuned/"
        "1xNVIDIA_GeForce_RTX_3090/fp16/seed=0/pytorch_model.onnx",
        "fp16",
        inputs=dict.fromkeys(("input_ids", "segment_ids", "input_mask"), ("batch", 384)),
        types=dict.fromkeys(("input_ids", "segment_ids", "input_mask"), "int32"),
    ),
    IssueCommand(
        f"{_TRT}/4020",
        "$ trtexec --onnx=resnet18-v1-7.onnx --fp16 --int8 --sparsity=force "
        "--saveEngine=resnet18-v1-7.engine --exportProfile=resnet18-v1-7.txt "
        "--exportLayerInfo=resnet18-v1-7.json --profilingVerbosity=detailed",
        "resnet18-v1-7.onnx",
        "int8",
        inputs={"data": (1, 3, 224, 224)},
        floats="fp16",
        data=True,
        missing=["--sparsity=force"],
    ),
    IssueCommand(
        "https://github.com/NVIDIA-AI-IOT/cuDLA-samples/issues/19",
        "/usr/src/tensorrt/bin/trtexec --minShapes=images:1x3x640x640 --maxShapes=images:1x3x640x640 "
        "--optShapes=images:1x3x640x640 --shapes=images:1x3x640x640 "
        "--onnx=data/model/yolov5_trimmed_qat_1_25.onnx --buildDLAStandalone --useDLACore=1 "
        "--saveEngine=data/loadable/yolov5.int8.int8hwc4in.fp16chw16out.standalone.dla1.bin "
        "--inputIOFormats=int8:dla_hwc4 --outputIOFormats=fp16:chw16 --int8 --fp16 "
        "--calib=data/model/yolov5_trimmed_qat_1_25_precision_config_calib.cache "
        "--precisionConstraints=prefer --layerPrecisions=/model.24/m.0/Conv:fp16,/model.24/m.1/Conv:fp16,"
        "/model.24/m.2/Conv:fp16,"
        "/model.23/cv3/conv/Conv:fp16,/model.23/cv3/act/Sigmoid:fp16,/model.23/cv3/act/Mul:fp16",
        "data/model/yolov5_trimmed_qat_1_25.onnx",
        "int8",
        inputs={"images": ("batch", 3, 640, 640)},
        layers=["/model.0/conv/Conv", "/model.23/cv3/conv/Conv", "/model.24/m.0/Conv"],
        floats="fp16",
        cache="data/model/yolov5_trimmed_qat_1_25_precision_config_calib.cache",
        missing=[
            "--buildDLAStandalone", "--useDLACore", "--inputIOFormats", "--outputIOFormats",
            "--precisionConstraints", "--layerPrecisions",
        ],
        by_layer={"/model.23/cv3/conv/Conv": "fp16", "/model.24/m.0/Conv": "fp16"},
    ),
    IssueCommand(
        f"{_TRT}/4645",
        'trtexec.exe \\\n     --onnx="path/to/model.onnx" \\\n     --saveEngine="model_fp32.trt" \\\n'
        "     --noTF32 \\\n     --profilingVerbosity=detailed\n",
        "path/to/model.onnx",
        "fp32",
    ),
    IssueCommand(
        f"{_TRT}/3762",
        "/usr/src/tensorrt/bin/trtexec --onnx=best.onnx --saveEngine=v8s_ptq.engine --int8 --workspace=4096",
        "best.onnx",
        "int8",
        quantized=True,
    ),
    IssueCommand(
        "https://github.com/lyuwenyu/RT-DETR/issues/47",
        "LD_LIBRARY_PATH=TensorRT-8.6.1.6/lib/ TensorRT-8.6.1.6/bin/trtexec "
        "--onnx=./rtdetr_r50vd_6x_coco.onnx --workspace=4096 "
        '--shapes="image:1x3x640x640,scale_factor:1x2,im_shape:1x2" '
        "--saveEngine=rtdetr_r50vd_6x_coco.trt --avgRuns=10 --fp16",
        "rtdetr_r50vd_6x_coco.onnx",
        "fp16",
        inputs={"image": ("N", 3, 640, 640), "scale_factor": ("N", 2), "im_shape": ("N", 2)},
    ),
    IssueCommand(
        "https://github.com/OE4T/meta-tegra/pull/2243",
        "/usr/src/tensorrt/bin/trtexec --onnx=/videos/tinyyolov2-8.onnx --saveEngine=/tmp/yolo.engine     "
        "--optShapes=image:1x3x416x416 --skipInference",
        "videos/tinyyolov2-8.onnx",
        "tf32",
        inputs={"image": ("None", 3, 416, 416)},
        paths=["/videos=videos"],
    ),
    IssueCommand(
        f"{_TRT}/1310",
        "./trtexec --onnx=fcn_hr18_512x1024_160k_cityscapes_20200602_190822-221e4a4f.onnx --fp16 "
        "--saveEngine=fcn_hr18_512x1024_160k_cityscapes_20200602_190822-221e4a4f_fp16.trt --dumpProfile "
        "--exportTimes=fcn_hr18_512x1024_160k_cityscapes_20200602_190822-221e4a4f_fp16.json ",
        "fcn_hr18_512x1024_160k_cityscapes_20200602_190822-221e4a4f.onnx",
        "fp16",
    ),
    IssueCommand(
        "https://github.com/junhong-3dv/s2m2/issues/29",
        "trtexec --onnx=s2m2.onnx --fp16 --precisionConstraints=obey "
        "--layerPrecisions=node_linalg_vector_norm_2:fp32",
        "s2m2.onnx",
        "fp16",
        layers=["node_conv2d", "node_linalg_vector_norm_2", *(f"node_conv2d_{n}" for n in range(12))],
        by_layer={"node_linalg_vector_norm_2": "fp32"},
    ),
]  # fmt: skip
"""Of the last one, the issue shows the options for precision; the rest of the line is not there."""

POLYGRAPHY = [
    IssueCommand(
        f"{_TRT}/3928",
        ">> polygraphy convert IntraNoAR_decoder_sur_sim.onnx --int8 --data-loader-script ./calib_i.py "
        "--trt-min-shapes y_hat:[1,256,23,30] --trt-max-shapes y_hat:[1,256,100,160] "
        "--trt-opt-shapes y_hat:[1,256,100,160] --calibration-cache identity_calib.cache -o I_E_int8.engine "
        "--verbose",
        "IntraNoAR_decoder_sur_sim.onnx",
        "int8",
        inputs={"y_hat": (1, 256, "h", "w")},
        loader="calib_i.py",
    ),
    IssueCommand(
        f"{_TRT}/3625",
        "polygraphy convert modified_full_sanitized.onnx -o modified_full_sanitized_int8.engine --int8 "
        "--data-loader-script data_loader.py",
        "modified_full_sanitized.onnx",
        "int8",
        inputs={"im_patches": (1, 3, 32, 32), "train_samples": (1, 4, 16)},
        loader="data_loader.py",
    ),
    IssueCommand(
        f"{_TRT}/2336",
        "polygraphy run model_32.onnx --trt --onnxrt --save-engine=model_32_to_16.plan --fp16 "
        "--pool-limit workspace:1G",
        "model_32.onnx",
        "fp16",
        compares=[],
    ),
    IssueCommand(
        f"{_TRT}/2691",
        "polygraphy run onnx/EfficientUNetModel_.onnx --trt --fp16 --onnxrt",
        "onnx/EfficientUNetModel_.onnx",
        "fp16",
        inputs={"input_0": (2, 3, 64, 64), "input_1": (2,), "input_2": (2, 81, 640)},
        types={"input_1": "int32"},
        compares=[],
    ),
    IssueCommand(
        f"{_TRT}/3552",
        "polygraphy convert detr.onnx -o detr_mixed.engine --fp16 --precision-constraints obey "
        "--layer-precisions /backbone/*:fp16 else:fp32",
        "detr.onnx",
        "fp16",
        layers=["/backbone/conv1/Conv", "/backbone/conv2/Conv"],
        missing=["--precision-constraints", "--layer-precisions"],
    ),
    IssueCommand(
        f"{_TRT}/3679",
        "polygraphy convert model.onnx --fp16 --precision-constraints obey --trt-npps add_constraints.py "
        "-o model.engine --verbose > log.txt ",
        "model.onnx",
        "fp16",
        missing=["--trt-npps"],
    ),
    IssueCommand(
        f"{_TRT}/3035",
        " polygraphy run inference/yolov5s.onnx --onnxrt --trt --fp16 --verbose   --onnx-outputs mark all "
        "--trt-outputs mark all --atol 1e-3 --rtol 1e-3 --input-shapes 'images:[1,3,640,640]' ",
        "inference/yolov5s.onnx",
        "fp16",
        inputs={"images": ("batch", 3, 640, 640)},
        compares=["--layers", "--atol", "1e-3", "--rtol", "1e-3"],
    ),
    IssueCommand(
        f"{_TRT}/3670",
        "polygraphy run tmp_dir/MyModel.onnx --trt --onnxrt --atol 0.001 --rtol 0.001 --trt-outputs mark all "
        "--no-save-all-tensors-to-one-file --save-external-data tmp_dir/ --onnx-outputs mark all --verbose "
        "--trt-min-shapes input_0:[1,4,16,16] input_1:[1,4,16,16] input_2:[1,1,16,16] input_3:[1,3,128,128] "
        "input_4:[1,1,128,128]  --trt-opt-shapes input_0:[1,4,16,16] input_1:[1,4,16,16] input_2:[1,1,16,16] "
        "input_3:[1,3,128,128] input_4:[1,1,128,128] --pool-limit workspace:20G",
        "tmp_dir/MyModel.onnx",
        "fp32",
        inputs={
            **{f"input_{n}": ("batch", 4, 16, 16) for n in (0, 1)},
            "input_2": ("batch", 1, 16, 16),
            "input_3": ("batch", 3, 128, 128),
            "input_4": ("batch", 1, 128, 128),
        },
        compares=["--atol", "0.001", "--rtol", "0.001", "--layers"],
    ),
]
