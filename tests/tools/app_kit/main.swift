// Saves tensors of several dtypes with the Swift code of taps. The classes stand for those of the kit's header.
import Foundation

enum NetDType: Int {
    case float32, float64, float16, int64, int32, int16, int8, uInt8, bool
}

class NetTensor: NSObject {
    let data: Data
    let shape: [NSNumber]
    let dtype: NetDType

    init(data: Data, shape: [NSNumber], dtype: NetDType) {
        self.data = data
        self.shape = shape
        self.dtype = dtype
    }
}

class Net: NSObject {
    init(path: String) throws {}
}

let bytes = Data((0 ..< 6).map { UInt8(200 + $0) })
let taps = [
    "float": NetTensor([Float](arrayLiteral: -3, -1.5, 0, 1.5, 3, 4.5), shape: [2, 3, 1]),
    "001.tanh.0": NetTensor([Int64](arrayLiteral: -3, 1 << 33), shape: [2]),
    "bytes": NetTensor(data: bytes, shape: [6, 1], dtype: .uInt8),
    "number": NetTensor([Float](arrayLiteral: 7), shape: []),
    "empty": NetTensor(data: Data(), shape: [0, 5], dtype: .float64),
]
try NetTaps.save(taps, to: URL(fileURLWithPath: CommandLine.arguments[1]))
